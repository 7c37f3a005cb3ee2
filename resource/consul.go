// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/wanfed/wanfed/api/pb"
)

// Consul's clients call the resource service under its name in Consul. The names
// of messages are not on the wire, and the field numbers are the same.
const (
	consulPackage = "hashicorp.consul.resource"
	consulFile    = "pbresource/resource.proto"
	// ConsulService is the second name of the service.
	ConsulService = consulPackage + ".ResourceService"
)

// RegisterService registers the resource service under both names.
func RegisterService(r grpc.ServiceRegistrar, s pb.ResourceServiceServer) {
	pb.RegisterResourceServiceServer(r, s)
	second := pb.ResourceService_ServiceDesc
	second.ServiceName, second.Metadata = ConsulService, consulFile
	r.RegisterService(&second, s)
}

// CanonicalMethod translates a gRPC method of the second name,
// "/package.Service/Method", to the first name. It returns others unchanged.
func CanonicalMethod(full string) string {
	if name, ok := strings.CutPrefix(full, "/"+ConsulService+"/"); ok {
		return "/" + pb.ResourceService_ServiceDesc.ServiceName + "/" + name
	}
	return full
}

// Descriptors resolves the files that gRPC reflection needs: the files of the
// program, and one file for the second service name.
type Descriptors struct{ second protoregistry.Files }

var _ protodesc.Resolver = (*Descriptors)(nil)

// NewDescriptors derives the file of the second service name from the file of the
// first.
func NewDescriptors() (*Descriptors, error) {
	first := pb.File_api_pb_resource_proto
	p := protodesc.ToFileDescriptorProto(first)
	rename(p, "."+string(first.Package())+".", "."+consulPackage+".")
	name, pkg := consulFile, consulPackage
	p.Name, p.Package, p.Options = &name, &pkg, nil
	f, err := protodesc.NewFile(p, protoregistry.GlobalFiles)
	if err != nil {
		return nil, fmt.Errorf("descriptor of %s: %w", ConsulService, err)
	}
	d := new(Descriptors)
	return d, d.second.RegisterFile(f)
}

// rename replaces the prefix of the names of all types that a file refers to.
func rename(f *descriptorpb.FileDescriptorProto, old, new string) {
	change := func(name *string) {
		if name != nil && strings.HasPrefix(*name, old) {
			*name = new + (*name)[len(old):]
		}
	}
	var messages func(all []*descriptorpb.DescriptorProto)
	messages = func(all []*descriptorpb.DescriptorProto) {
		for _, m := range all {
			for _, field := range m.Field {
				change(field.TypeName)
			}
			messages(m.NestedType)
		}
	}
	messages(f.MessageType)
	for _, s := range f.Service {
		for _, m := range s.Method {
			change(m.InputType)
			change(m.OutputType)
		}
	}
}

// FindFileByPath implements protodesc.Resolver.
func (d *Descriptors) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if f, err := d.second.FindFileByPath(path); err == nil {
		return f, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

// FindDescriptorByName implements protodesc.Resolver.
func (d *Descriptors) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if f, err := d.second.FindDescriptorByName(name); err == nil {
		return f, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}
