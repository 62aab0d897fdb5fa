"""Blur, convolution and morphology: operators that compute every value from its neighbours."""
