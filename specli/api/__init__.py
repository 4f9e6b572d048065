"""specli for Python programs: what `import specli` offers, and what the command line is built on."""
