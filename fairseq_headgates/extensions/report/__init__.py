"""Write a web page about an experiment (`headgates report`): docs/reports.md."""
