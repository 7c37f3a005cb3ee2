// SPDX-License-Identifier: MPL-2.0

// Package terraform is the driver "terraform". It generates a root module that
// calls the module of the task, and runs Terraform or OpenTofu in it.
//
//	d := terraform.New(terraform.Config{})
//	result, err := d.Run(ctx, work, driver.Request{ID: id, Mode: driver.Apply, Inputs: inputs})
//
// # Files
//
// The directory of the task has the files that Consul-Terraform-Sync generates,
// so that a directory of CTS can be used further:
//
//	main.tf                backend, providers, and the call of the module
//	variables.tf           one sensitive object for each provider
//	variables.module.tf    types of the variables of the task
//	variables.auto.tfvars  values of the variables of the task
//	services.json, …       values of the inputs, one file for each variable
//	inputs/main.tf         types of the inputs
//	init.digest            what the last init has installed
//	run.json, run.log      the program that runs, and its output
//
// Arguments of providers are in environment variables TF_VAR_NAME. A plan is a
// file in memory, since it contains the arguments of providers. Terraform itself
// writes errored.tfstate if it cannot store a state.
//
// # Values of inputs
//
// Values of inputs are JSON, and main.tf decodes them. The conversion of a map to
// a type takes Terraform a time that grows with the square of the number of
// elements: half a minute for 10,000 services. The file of a map is therefore a
// list of maps with 32 elements each. The module in the directory "inputs"
// converts these maps, and merges them. Its types are those that the module of
// the task declares. A variable without such a type, and a variable of a remote
// module, gets the type of CTS. See decision record 0081.
//
// # Runs
//
// "terraform init" runs if the generated configuration, the local module, or the
// version of Terraform has changed, or if the last run has failed. Without a
// guard, "terraform apply" does the rest. With a guard, the guard decides
// about the plan that is applied. The state is stored by the backend "http", which
// is configured by environment variables only, or by another backend in a
// workspace with the name of the task.
//
// # Limits
//
// Terraform is never downloaded. Versions from 0.13 on are accepted. Those before
// 1.0 have no JSON output: their errors are parts of a text.
package terraform
