"""What measures for those who work on nextn: ops and whole steps (`micro`), and configurations (`sweep`)."""
