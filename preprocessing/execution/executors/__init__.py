"""Where the tasks of a stage run: in processes of this machine, or as Ray tasks on a cluster."""
