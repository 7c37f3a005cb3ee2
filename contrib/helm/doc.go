// SPDX-License-Identifier: MPL-2.0

// Package helm tests the chart in the directory wanfed: Helm renders it, the
// objects are compared with the types and schemas of Kubernetes, and the program
// runs with the rendered settings and arguments in network namespaces.
//
// It is a module of its own, so Helm and the types of Kubernetes are not
// dependencies of wanfed. "make test-release" runs it.
package helm
