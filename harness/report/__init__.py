"""From one `Report` record to the files people read. The only place that rounds."""
