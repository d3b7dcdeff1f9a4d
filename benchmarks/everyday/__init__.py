"""What a practitioner does every day: single rows, tables, sparse text, the command line, photos and characters."""
