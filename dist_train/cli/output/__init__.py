"""What verbs print on stdout.

table        aligned text: tables, pairs, ages, sizes
json_output  `--json`: one object with a schema_version
"""
