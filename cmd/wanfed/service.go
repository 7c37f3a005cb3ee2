// SPDX-License-Identifier: MPL-2.0

package main

import (
	"log/slog"

	"github.com/wanfed/wanfed/internal/handover"
)

// tellManager tells the service manager, if there is one, in which state this process is.
func tellManager(log *slog.Logger, state string) {
	if err := handover.Notify(state); err != nil {
		log.Warn("cannot tell the service manager", "err", err)
	}
}
