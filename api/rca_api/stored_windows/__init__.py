"""Windows of diagnoses, stored as long as retention allows."""
