"""`CLDNetClassifier` and what it is made of: model, statistics, lessons, footprint, audit, checks."""
