// SPDX-License-Identifier: MPL-2.0

package unit

import (
	"fmt"
	"path/filepath"
)

// Unit describes the unit of a process. All fields are required.
type Unit struct {
	Command  string // server or gateway
	Program  string // path of the program
	Settings string // path of the settings file; its directory has the certificates
	Data     string // directory that the process may write
	User     string // user of the process
}

// Name returns the file name of the unit.
func (u Unit) Name() string { return "wanfed-" + u.Command + ".service" }

// String returns the text of the unit. Values must not have spaces.
func (u Unit) String() string {
	ambient, after := "", "network-online.target"
	if u.Command == "gateway" {
		ambient = "CAP_NET_BIND_SERVICE" // for a WAN port such as 443
		// systemd stops units in the reverse order: a gateway deregisters at its server.
		after += " wanfed-server.service"
	}
	writable := u.Data + " " + filepath.Dir(u.Settings)
	return fmt.Sprintf(text, u.Program, u.Command, u.Settings, writable, u.User, ambient, after)
}

const text = `[Unit]
Description=wanfed %[2]s
Wants=network-online.target
After=%[7]s

[Service]
Type=notify
User=%[5]s
ExecStart=%[1]s %[2]s --config-file %[3]s
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2s
LimitNOFILE=200000
UMask=0077
AmbientCapabilities=%[6]s
CapabilityBoundingSet=%[6]s
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateMounts=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
ReadWritePaths=%[4]s
RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
`
