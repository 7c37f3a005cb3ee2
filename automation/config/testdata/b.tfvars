enabled = true
