"""`nextn bench compare`: several servers over scenarios and loads, taking turns in one run.

`sides` and `scenarios` say what is asked for, `plan` who goes when, `contestant` and `run` do it, `identity`
compares the texts, `results` holds what came out, and `table`, `plots` and `report` show it.
"""
