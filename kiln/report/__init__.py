"""`inv report`: receipts of a fleet as one page that needs nothing but itself, on a terminal, or as JSON."""
