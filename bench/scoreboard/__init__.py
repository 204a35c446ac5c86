"""The scoreboard of the two papers: what they print, what this project reaches."""
