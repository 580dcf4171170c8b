"""What all studies share: plans, arms, statistics, claims and the content of a report."""
