"""Tests of `forescribe.distill`."""
