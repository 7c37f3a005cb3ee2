tags   = ["x", "y"]
limits = { cpu = 1.5, names = { a = "b" } }
