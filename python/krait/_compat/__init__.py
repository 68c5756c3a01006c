"""What krait.compat installs. Its public face is krait/compat.py; the functions carry the official names and signatures."""
