"""How good the answers are: labelled windows judged, scored, grouped and compared with baselines."""
