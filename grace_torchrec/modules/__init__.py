"""Modules: the drop-in embedding bag collection, the swap, its undo and its proof."""
