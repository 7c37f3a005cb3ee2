// SPDX-License-Identifier: MPL-2.0

package wan

var InNamespace = inNamespace
