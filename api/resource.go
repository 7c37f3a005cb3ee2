// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

// Paths of the resource API.
const (
	// ResourcePath is followed by group, version, kind and, for one resource, the
	// name.
	ResourcePath      = "/api/"
	ResourceTypesPath = "/api/types"
	OpenAPIPath       = "/api/openapi.json"
)

// Resource is a resource in the HTTP API: the JSON of its protobuf message, except
// that data has no "@type". 64-bit numbers are strings. Zero values are left out.
type Resource struct {
	ID    ResourceID  `json:"id"`
	Owner *ResourceID `json:"owner,omitempty"`
	// Version changes with every write.
	Version string `json:"version,omitempty"`
	// Generation changes with every write of data.
	Generation string                    `json:"generation,omitempty"`
	Metadata   map[string]string         `json:"metadata,omitempty"`
	Status     map[string]ResourceStatus `json:"status,omitempty"`
	// Data is the JSON of the type's message.
	Data               json.RawMessage `json:"data"`
	CreateIndex        uint64          `json:"create_index,omitempty,string"`
	ModifyIndex        uint64          `json:"modify_index,omitempty,string"`
	PrimaryModifyIndex uint64          `json:"primary_modify_index,omitempty,string"`
}

// ResourceID names a resource.
type ResourceID struct {
	UID     string           `json:"uid,omitempty"`
	Name    string           `json:"name"`
	Type    ResourceTypeName `json:"type"`
	Tenancy Tenancy          `json:"tenancy,omitzero"`
}

// ResourceTypeName names a type of resource.
type ResourceTypeName struct {
	Group        string `json:"group"`
	GroupVersion string `json:"group_version"`
	Kind         string `json:"kind"`
}

// String returns group/version/Kind.
func (t ResourceTypeName) String() string { return t.Group + "/" + t.GroupVersion + "/" + t.Kind }

// ParseResourceType parses group/version/kind. It does not check that the type
// exists.
func ParseResourceType(s string) (ResourceTypeName, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return ResourceTypeName{}, fmt.Errorf("type %q is not group/version/Kind, such as catalog/v1/Node", s)
	}
	return ResourceTypeName{parts[0], parts[1], parts[2]}, nil
}

// Tenancy is the partition and namespace of a resource. An empty field means the
// default, or that the scope of the type does not include it.
type Tenancy struct {
	Partition string `json:"partition,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// ResourceStatus is the status of a resource by one controller.
type ResourceStatus struct {
	ObservedGeneration string              `json:"observed_generation"`
	Conditions         []ResourceCondition `json:"conditions,omitempty"`
	UpdatedAt          time.Time           `json:"updated_at,omitzero"`
}

// ResourceCondition is one observation of a controller.
type ResourceCondition struct {
	Type    string `json:"type"`
	State   string `json:"state"` // STATE_TRUE, STATE_FALSE or STATE_UNKNOWN
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Resource is the subject of the condition, if it is another resource.
	Resource *ResourceReference `json:"resource,omitempty"`
}

// ResourceReference refers to a resource or a part of it.
type ResourceReference struct {
	Type    ResourceTypeName `json:"type"`
	Tenancy Tenancy          `json:"tenancy,omitzero"`
	Name    string           `json:"name"`
	Section string           `json:"section,omitempty"`
}

// ResourceType is a registered type.
type ResourceType struct {
	Type      ResourceTypeName `json:"type"`
	Scope     string           `json:"scope"` // namespace, partition or cluster
	Federated bool             `json:"federated"`
	Message   string           `json:"message"` // full name of the protobuf message of data
	Path      string           `json:"path"`    // of its resources
}

// ResourceEvent is one event of a watch.
type ResourceEvent struct {
	// Type is EventUpsert, EventDelete or EventEndOfSnapshot.
	// EventEndOfSnapshot has no resource. It follows the resources that existed
	// at the beginning.
	Type     string   `json:"event"`
	Resource Resource `json:"resource,omitzero"`
}

// Events of a watch. EventEnd is the last event of a watch, if the server can
// still send it. Its data contain the reason for the end.
const (
	EventUpsert        = "upsert"
	EventDelete        = "delete"
	EventEndOfSnapshot = "end-of-snapshot"
	EventEnd           = "end"
)

// FromResource converts r. data is the JSON of its message.
func FromResource(r *pb.Resource, data json.RawMessage) Resource {
	out := Resource{
		ID: FromResourceID(r.GetId()), Version: r.GetVersion(), Generation: r.GetGeneration(),
		Metadata: r.GetMetadata(), Data: data,
		CreateIndex: r.GetCreateIndex(), ModifyIndex: r.GetModifyIndex(), PrimaryModifyIndex: r.GetPrimaryModifyIndex(),
	}
	if r.GetOwner() != nil {
		owner := FromResourceID(r.GetOwner())
		out.Owner = &owner
	}
	for key, s := range r.GetStatus() {
		if out.Status == nil {
			out.Status = make(map[string]ResourceStatus, len(r.GetStatus()))
		}
		out.Status[key] = fromStatus(s)
	}
	return out
}

// FromResourceID converts id.
func FromResourceID(id *pb.ID) ResourceID {
	return ResourceID{
		UID: id.GetUid(), Name: id.GetName(), Type: FromResourceType(id.GetType()), Tenancy: fromTenancy(id.GetTenancy()),
	}
}

// FromResourceType converts t.
func FromResourceType(t *pb.Type) ResourceTypeName {
	return ResourceTypeName{Group: t.GetGroup(), GroupVersion: t.GetGroupVersion(), Kind: t.GetKind()}
}

func fromTenancy(t *pb.Tenancy) Tenancy {
	return Tenancy{Partition: t.GetPartition(), Namespace: t.GetNamespace()}
}

func fromStatus(s *pb.Status) ResourceStatus {
	out := ResourceStatus{ObservedGeneration: s.GetObservedGeneration()}
	if s.GetUpdatedAt() != nil {
		out.UpdatedAt = s.GetUpdatedAt().AsTime()
	}
	for _, c := range s.GetConditions() {
		condition := ResourceCondition{Type: c.GetType(), State: c.GetState().String(), Reason: c.GetReason(), Message: c.GetMessage()}
		if about := c.GetResource(); about != nil {
			condition.Resource = &ResourceReference{
				Type: FromResourceType(about.GetType()), Tenancy: fromTenancy(about.GetTenancy()), Name: about.GetName(), Section: about.GetSection(),
			}
		}
		out.Conditions = append(out.Conditions, condition)
	}
	return out
}

// ToPB returns the protobuf message of id.
func (id ResourceID) ToPB() *pb.ID {
	return &pb.ID{
		Uid: id.UID, Name: id.Name, Type: id.Type.ToPB(), Tenancy: &pb.Tenancy{Partition: id.Tenancy.Partition, Namespace: id.Tenancy.Namespace},
	}
}

// ToPB returns the protobuf message of t.
func (t ResourceTypeName) ToPB() *pb.Type {
	return &pb.Type{Group: t.Group, GroupVersion: t.GroupVersion, Kind: t.Kind}
}
