"""`inv smoke`: one pytest process for each node, facts from probes, a verdict and a receipt for each."""
