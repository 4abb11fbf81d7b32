"""Generated scenarios, campaigns over them, shrinking, and the kill matrix. Nothing here knows what a fault does."""
