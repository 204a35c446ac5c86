"""Rivals: the methods of others, written anew from their papers, run under the same driver."""
