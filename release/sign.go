// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
)

// envKey names the file of an SSH key that signs the checksums. Without it, a
// release is not signed.
const envKey = "WANFED_SIGNING_KEY"

// signNamespace is the purpose of signatures: a signature for another purpose is
// not valid (sshsig, PROTOCOL.sshsig of OpenSSH).
const signNamespace = "wanfed-release"

// sign writes the signature of a file to the same name with the suffix .sig.
func sign(path, key string) error {
	cmd := exec.Command("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", signNamespace, path)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr // a passphrase
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ssh-keygen -Y sign with the key of %s: %w", envKey, err)
	}
	return nil
}
