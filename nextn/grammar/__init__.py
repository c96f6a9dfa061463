"""Grammar libraries behind one interface: they compile a constraint into `nextn.constraint.Grammar`."""
