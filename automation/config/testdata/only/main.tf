variable "services" {}
