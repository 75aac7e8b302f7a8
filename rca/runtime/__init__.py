"""What runs inside a training job: AntDT, STAR, StragglAR, data shards and fixes of the workload."""
