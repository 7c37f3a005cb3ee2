log_level = "ERR"
consul {
  address = "ADDRESS"
}
driver "terraform" {
  path = "TERRAFORM_DIR"
  backend "local" {}
}
task {
  name   = "t"
  module = "./mod"
  condition "services" {
    names = ["none-yet"]
  }
}
