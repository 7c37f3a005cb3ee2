// SPDX-License-Identifier: MPL-2.0

package api

// RaftConfiguration is the Raft group of a datacenter, in
// /v1/operator/raft/configuration. The JSON is Consul's.
type RaftConfiguration struct {
	Servers []RaftServer
	Index   uint64
}

// RaftServer is one server of a Raft group.
type RaftServer struct {
	ID, Node, Address string
	Leader            bool
	ProtocolVersion   string
	Voter             bool
	LastIndex         uint64 // up to which the log is equal to that of the leader; 0: unknown
}

// GroupHealth is the health of the servers of a datacenter, in
// /v1/operator/autopilot/health. The JSON is Consul's.
type GroupHealth struct {
	Healthy bool
	// FailureTolerance is the number of voters that may fail while the others
	// still have a leader.
	FailureTolerance int
	Servers          []ServerHealth
}

// ServerHealth is the health of one server.
type ServerHealth struct {
	ID, Name, Address, SerfStatus, Version string
	Leader, Healthy, Voter                 bool
	LastContact                            string // duration since the last contact with the leader; "": unknown
	LastIndex                              uint64
}

// Coordinate is a network coordinate (Vivaldi). The unit is a second. The
// distance of two coordinates is an estimate of the round-trip time.
type Coordinate struct {
	Vec                       []float64
	Error, Adjustment, Height float64
}

// NodeCoordinate is the coordinate of a server, in /v1/coordinate/nodes.
type NodeCoordinate struct {
	Node, Segment string
	Coord         Coordinate
}

// DatacenterCoordinates are the coordinates of the servers of a datacenter, in
// /v1/coordinate/datacenters.
type DatacenterCoordinates struct {
	Datacenter, AreaID string
	Coordinates        []NodeCoordinate
}

// Host describes the machine of a server, in /v1/agent/host. The JSON is
// Consul's. Sizes are in bytes.
type Host struct {
	Memory         HostMemory
	CPU            []HostCPU
	Host           HostInfo
	Disk           HostDisk
	CollectionTime int64 // nanoseconds since 1970
	Errors         []string
}

// HostMemory is the memory of a machine.
type HostMemory struct {
	Total       uint64  `json:"total"`
	Available   uint64  `json:"available"`
	Used        uint64  `json:"used"`
	UsedPercent float64 `json:"usedPercent"`
	Free        uint64  `json:"free"`
}

// HostCPU is one processor.
type HostCPU struct {
	CPU       int    `json:"cpu"`
	ModelName string `json:"modelName"`
}

// HostInfo is the name and the system of a machine.
type HostInfo struct {
	Hostname      string `json:"hostname"`
	Uptime        uint64 `json:"uptime"` // seconds
	OS            string `json:"os"`
	KernelVersion string `json:"kernelVersion"`
	KernelArch    string `json:"kernelArch"`
}

// HostDisk is the file system of the data directory.
type HostDisk struct {
	Path string `json:"path"`
	Free uint64 `json:"free"`
}
