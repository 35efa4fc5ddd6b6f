"""The API server: who we are to it, what it is asked, what its refusals mean."""
