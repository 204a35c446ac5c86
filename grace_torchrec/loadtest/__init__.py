"""Load test: an engine under load that another process makes, beside stock and with parts left out.

Read in this order: subject (what is served), entrants (what stands beside it), rounds (who takes a turn
when); processes, generator (who asks), server (who answers), encoding (requests as bytes);
intervals (what rounds say of a median), notes (what weakens the figures).
"""
