"""`nextn bench compare`: several servers take turns over scenarios and loads in one run.

`sides` defines the servers, `scenarios` the prompts, and `plan` the order. `contestant` and `run` run it.
`identity` compares the texts. `results` holds the results; `table`, `plots` and `report` show them.
"""
