"""What the case ``schedule`` measures, a file each."""
