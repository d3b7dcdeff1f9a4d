"""A model over HTTP: the service, its client and the studio's page."""
