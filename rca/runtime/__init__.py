"""What runs inside a training job: AntDT, STAR, StragglAR and data shards."""
