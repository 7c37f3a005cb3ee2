// SPDX-License-Identifier: MPL-2.0

package server

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/wanfed/wanfed/resource/raftstore"
)

// Recovery is the data directory of a stopped server of datacenter DC.
type Recovery struct {
	*raftstore.Recovery
	DC string
}

// OpenRecovery opens the data directory of a stopped server. The caller closes
// the Recovery.
func OpenRecovery(dataDir string, logger *slog.Logger) (*Recovery, error) {
	r, err := raftstore.OpenRecovery(filepath.Join(dataDir, raftDir), logger)
	if err != nil {
		return nil, err
	}
	dc, err := os.ReadFile(filepath.Join(dataDir, "datacenter"))
	if err != nil {
		r.Close()
		return nil, err
	}
	return &Recovery{r, strings.TrimSpace(string(dc))}, nil
}
