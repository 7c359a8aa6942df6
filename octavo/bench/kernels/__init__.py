"""Every native op against what torch offers for it, and both against what this machine can do."""
