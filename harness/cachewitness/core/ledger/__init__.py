"""What is true: for every physical page, which prefix it holds."""
