"""The windows that diagnoses are of, kept as long as retention allows."""
