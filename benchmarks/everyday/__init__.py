"""Figures for everyday use: accuracy, time and memory on data that anyone has."""
