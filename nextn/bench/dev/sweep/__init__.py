"""`nextn bench compare`: several servers over scenarios and loads, taking turns in one run.

`sides` and `scenarios` define what runs, and `plan` when. `contestant` and `run` run it. `identity` compares
the texts and `results` holds the outcome. `table`, `plots` and `report` show it.
"""
