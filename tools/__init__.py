"""What is made for the docs: pictures, and the site."""
