"""The stationarity identities of a layer, and the assumptions between them and alignment."""
