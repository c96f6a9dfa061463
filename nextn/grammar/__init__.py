"""Grammar libraries behind one interface: constraints in, `nextn.constraint.Grammar` out."""
