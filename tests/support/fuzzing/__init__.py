"""Generated graphs and programs with the values that hurt, checked against what defines their results."""
