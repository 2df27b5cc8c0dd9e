"""The six relations of the canonical representation hypothesis: values, null, table, history."""
